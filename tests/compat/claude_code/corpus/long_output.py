#!/usr/bin/env python3
print("x" * 3_000_000)
