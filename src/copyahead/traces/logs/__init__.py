"""What a server's own log says of its speed: `copyahead logs`.

`lines` reads files of any size, `own`, `llama_server` and `vllm` know what each server writes,
`reading` tells them apart. `bands` and `quantiles` hold what was read, in a memory that does not
grow with the log; `rows` makes figures of it, `report` a page.
"""
