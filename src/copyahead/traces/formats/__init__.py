"""Recorded traffic in the forms in which people have it, read into one.

importers       files and directories in, traces out
conversations   what a trace is made of
messages        JSON messages of any known shape
chat_history    markdown of a long chat
"""
