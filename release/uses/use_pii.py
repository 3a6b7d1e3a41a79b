from windlass.capabilities import Redact, datafog_detector

Redact(datafog_detector("EMAIL"))
