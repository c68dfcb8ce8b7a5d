"""Answers that follow a grammar or a JSON schema, by way of llguidance.

compiler   a schema or grammar in, the state of an answer out
state      where an answer stands: masks, legal prefixes of drafts, forced tokens
emptiness  finds what of a schema no value can follow
queue      compiles beside the engine, one grammar after the other
child      the process that tries every grammar first
check      the program of that process
"""
