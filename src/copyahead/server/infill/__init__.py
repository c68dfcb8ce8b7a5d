"""Code completion: what is missing between two texts, as editors ask for it.

wire    what plugins for llama.cpp's server send
gap     the prompt: the file around the cursor and texts beside it, in the model's own tokens
ending  where a completion ends that its line or its time ends
answer  the reply as those plugins read it, whole or as a stream
route   `POST /infill`

`suffix` of `/v1/completions` takes its prompt from here, and answers as its own route does.
"""
