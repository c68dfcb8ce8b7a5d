"""Processes of copyahead's own, for what may crash, hang, or take all memory.

process    starts one, asks it, ends it
asker      who waits for what they do, and may leave
lifeline   the program that each of them runs under: it ends when its parent does, however that ends
"""
