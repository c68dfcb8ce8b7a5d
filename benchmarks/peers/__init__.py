"""Other programs that draft by copying, each behind the same few calls, and what drives them."""
