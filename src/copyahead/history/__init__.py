"""What requests have read and written, and where parts of it occurred before.

pool    rows of tokens, one a request, with the index over them
store   text of other requests of the same tenant: a ring of documents
pages   large arrays that cost memory only where they are written
"""
