"""The engine behind HTTP, for any client of OpenAI or Anthropic.

app              the application: paths, order of the layers, faults, start and stop
run              the application under uvicorn, until it is told to stop
service          what the routes of one server share: engine, template, limits, counters
route            what every route that speaks of messages does, from a body to its answer
engine_request   from a body to the engine's request
constraints      the form that an answer must have, in the spellings of several servers' clients
generation       the running requests behind one HTTP request
answers          a whole document, or a stream that a client may leave
events           answers in typed events: responses and Anthropic's messages
tokens           a text to token ids and back
wire             what clients send on every route, and checks of values
usage            what an answer cost and how it came about
metrics          counters for Prometheus
errors           refusals and faults as the client sees them
http/            what every route needs of HTTP: layers, keys, limits, streams
openai/          chat completions, text completions, responses
anthropic/       messages
page/            the page at `/`: a chat in the browser

How a conversation becomes tokens, and an answer's text becomes calls, is in `copyahead.chat`.
FastAPI is imported in here only, and only when a server is made.
"""
