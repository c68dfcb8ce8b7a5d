"""OpenAI's routes: chat completions, text completions, and responses.

chat              chat completions
completions       text completions
legacy            chat requests as clients wrote them before there were tools
choices           answers with `choices`, of both kinds of completions
logprobs          log-probabilities in the shapes of both
wire              what clients of both send
responses         an answer as items, and the events of their making
responses_input   what clients of responses send
"""
