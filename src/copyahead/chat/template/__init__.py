"""The chat template that comes with a model: what it can do, and how it is run.

jinja          the template as a program of Jinja
render         the process in which it runs, with limits
child          starting such processes, and asking them
template       rendering, with what the template cannot do said in another way
capabilities   finds out what a template can do, by trying it
literal_text   control tokens that are spelled out in a message stay letters
"""
