"""What every route needs of HTTP, whatever its API.

layers      what turns a request away before the application sees it
auth        keys, tenants, and who may ask by which name
connections how many there are, and how long a client may let one wait
limits      bytes, places in the queue, seconds in it
bodies      from the bytes of a body to its model, in a thread, up to the first fault
work        threads for what a request needs before its answer
streaming   server-sent events, keep-alives, and noticing that a client has left
"""
