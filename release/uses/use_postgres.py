from windlass.stores import open_store

open_store("postgresql://127.0.0.1:1/none")
