"""Anthropic's route: messages.

messages         an answer as blocks, and the events of their making; the count of tokens
messages_input   what clients send
"""
