"""A conversation in, tokens out, and back.

Nothing in here knows HTTP: a terminal may chat through it as well as a server.

conversation     turns, kept as token ids
messages         messages in their plain form, and in the ways that templates want them
prompt           from a conversation to the tokens of a request, and to how its answer is read
reasoning        where thinking begins and ends
reply            text to thinking, content and calls, piece by piece
transcript       one answer as it is read
untrusted_json   JSON that a model or a client wrote
template/        the model's own way of writing conversations down
tools/           what may be called, and how calls are written and found
"""
