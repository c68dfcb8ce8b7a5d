"""Files that may be larger than memory.

opening     the bytes of a file, compressed or not
parquet     the rows of a Parquet file
spool       pieces of data that are put away and come back
kept        what the readers have found
"""
