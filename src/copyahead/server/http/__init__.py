"""What every route needs of HTTP, whatever its API.

layers      what turns a request away before the application sees it
auth        keys, tenants, and who may ask by which name
connections how many there are, and how long a client may let one wait
limits      bytes, places in the queue, seconds in it
streaming   server-sent events, keep-alives, and noticing that a client has left
"""
