"""Tools: what a request may call, how models write calls, and how calls are found in their text.

definitions   tools as a request gives them, the choice among them, the grammar of a call
formats       the forms in which models write calls
stream        finds calls in a text that is still being written
json_call     reads a call that is JSON
tag_call      reads a call that is written in tags
tag_values    values inside tags
elsewhere     what a conversation says of tools that ran elsewhere
"""
