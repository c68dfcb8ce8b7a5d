"""The engine behind HTTP, for any OpenAI client.

app          the application: routes, order of the layers, start and stop
service      what the routes share: engine, tokens, template, limits, counters
generation   the running requests behind one HTTP request
wire         what clients send, as models; checks of values
reply        text to reasoning, content and tool calls
chat, completions   one route each: from the wire to a Request, and back
streaming    server-sent events, keep-alives, and noticing that a client has left
limits, auth, metrics, errors   what their names say

FastAPI is imported in here only, and only when a server is made.
"""
