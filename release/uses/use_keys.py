import keyring

from windlass.keys import place_of

keyring.get_keyring()
place_of("openai")
