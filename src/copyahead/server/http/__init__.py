"""What every route needs of HTTP, whatever its API.

layers      what turns a request away before the application sees it
auth        keys, tenants, and who may ask by which name
limits      bytes, places in the queue, seconds in it
streaming   server-sent events, keep-alives, and noticing that a client has left
"""
