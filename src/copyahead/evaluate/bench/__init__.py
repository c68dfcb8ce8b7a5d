"""How fast a server answers, seen from a client: `copyahead bench`.

`asking` sends one request and reads its answer, `running` decides when each is sent and to which
server, `figures` makes speeds and ratios of the answers. Any server with OpenAI's API will do.
"""
