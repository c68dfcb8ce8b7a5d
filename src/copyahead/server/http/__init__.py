"""What every route needs of HTTP, whatever its API.

layers      what turns a request away before the application sees it
auth        keys, tenants, and who may ask by which name
connections how many there are, and how long a client may let one wait
limits      bytes, places in the queue, seconds in it
receiving   how a route gets its body: in a thread, and in a process where it is large
bodies      from the bytes of a body to its model, up to the first fault
text_limit  what cannot fit the context, refused before anything is done with it
reader      the process that reads large bodies
reading     the program that runs in it
work        threads for what a request needs before its answer
streaming   server-sent events, keep-alives, and noticing that a client has left
"""
