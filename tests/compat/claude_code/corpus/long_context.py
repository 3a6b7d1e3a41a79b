#!/usr/bin/env python3
print("\n".join(f"line {number}" for number in range(3000)))
