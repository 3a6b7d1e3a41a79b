from windlass.prices import context_window, has_price_lists

assert has_price_lists()
assert context_window("openai", "gpt-4o")
