"""OpenAI's routes: chat completions, text completions, and responses."""
