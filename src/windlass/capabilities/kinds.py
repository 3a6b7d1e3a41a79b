"""The kinds of secrets and personal data that `Redact` knows, as anchored expressions that run in linear time."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping

SHORTEST = 6
"""No find is shorter."""

_ESCAPED = r"|(?<=\\[nrtbf])|(?<=\\u[0-9A-Fa-f]{4})|(?<=%[0-9A-Fa-f]{2})"
"""What looks like the end of a word may be an escaped character: in JSON, the `n` of a new line, or in a URL."""


def _after(others: str) -> str:
    """At a place that is not preceded by one of these characters, unless they are part of an escaped one."""
    return rf"(?:(?<![{others}]){_ESCAPED})"


_START = _after("A-Za-z0-9")
_WORD = r"[A-Za-z0-9_\-]"
_END = "(?![A-Za-z0-9])"


def _key(prefix: str, rest: str) -> str:
    return rf"{_START}{prefix}{rest}"


KEYS: Mapping[str, str] = {
    "anthropic": _key("sk-ant-", rf"{_WORD}{{16,}}"),
    "openrouter": _key("sk-or-", rf"{_WORD}{{16,}}"),
    "openai": _key("sk-", rf"{_WORD}{{16,}}"),
    "groq": _key("gsk_", r"[A-Za-z0-9]{20,}"),
    "xai": _key("xai-", r"[A-Za-z0-9]{20,}"),
    "aws": _key("(?:AKIA|ASIA|ABIA|ACCA)", rf"[A-Z0-9]{{16}}{_END}"),
    "google": _key("AIza", rf"{_WORD}{{30,}}"),
    "google_oauth": _key(r"(?:ya29\.|GOCSPX-)", rf"{_WORD}{{16,}}"),
    "github": _key("(?:gh[pousr]_|github_pat_)", r"[A-Za-z0-9_]{20,}"),
    "gitlab": _key("gl(?:pat|ptt|rt|dt|cbt|soat|ft)-", rf"{_WORD}{{16,}}"),
    "slack": _key("(?:xox[a-z]|xapp)-", r"[A-Za-z0-9\-]{10,}"),
    "slack_webhook": r"(?P<value>https://hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9/_\-]{10,})",
    "stripe": _key("(?:[sr]k_(?:live|test)_|whsec_)", r"[A-Za-z0-9]{10,}"),
    "twilio": _key("(?:SK|AC)", rf"[0-9a-f]{{32}}{_END}"),
    "sendgrid": _key(r"SG\.", rf"{_WORD}{{16,}}\.{_WORD}{{16,}}"),
    "npm": _key("npm_", r"[A-Za-z0-9]{30,}"),
    "pypi": _key("pypi-", rf"{_WORD}{{30,}}"),
    "huggingface": _key("(?:hf_|api_org_)", r"[A-Za-z0-9]{20,}"),
    "databricks": _key("dapi", rf"[0-9a-f]{{32}}{_END}"),
    "digitalocean": _key("do[opr]_v1_", r"[0-9a-f]{40,}"),
    "shopify": _key("shp(?:at|ca|pa|ss)_", r"[0-9A-Fa-f]{32,}"),
    "telegram": _key("[0-9]{8,10}:AA", rf"{_WORD}{{30,}}"),
    "jwt": _key("eyJ", rf"{_WORD}{{8,}}\.eyJ{_WORD}{{4,}}(?:\.{_WORD}+)?"),
}
"""Keys and tokens that can be told by how they begin."""

LABELLED: Mapping[str, tuple[re.Pattern[str], re.Pattern[str]]] = {
    "aws_secret": (
        re.compile(r"(?i:aws_secret_access_key|aws_session_token|secretaccesskey)[\"']?\s{0,4}[=:]\s{0,4}[\"']?"),
        re.compile(r"[A-Za-z0-9/+=]{16,}"),
    ),
    "azure": (re.compile("(?i:AccountKey|SharedAccessKey)="), re.compile("[A-Za-z0-9+/]{40,}={0,2}")),
    "bearer": (re.compile(r"(?i:\bbearer)\s{1,4}"), re.compile(r"[A-Za-z0-9_\-.~+/]{20,}={0,2}")),
    "url_password": (re.compile(r"://[^\s/:@\"']{0,128}:"), re.compile(r"[^\s/@\"']{1,256}(?=@)")),
}
"""Secrets that can be told only by what stands before them: the label, and then the secret."""

BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}(?:PRIVATE KEY(?: BLOCK)?-----|-{0,5}\Z)")
END = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")

LABEL = re.compile(
    r"(?i:\bbearer\s{1,4}|(?:aws_secret_access_key|aws_session_token|secretaccesskey)[\"']?\s{0,4}[=:]?\s{0,4})\Z"
)
"""What may stand before a secret, with white space in between."""

GROUPED = re.compile(r"(?:[A-Z]{1,2}(?=\d|\Z)|[+(\d])[A-Z\d (),.+\-]*\Z")
"""The beginning of what may be a card, an IBAN or a phone number."""


def is_card(text: str) -> bool:
    """Whether the last digit is right (Luhn), and the first ones are those of an issuer."""
    digits = [int(digit) for digit in text if digit.isdecimal()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    if (sum(digits[-1::-2]) + sum(doubled)) % 10:
        return False
    return bool(_ISSUERS.fullmatch("".join(map(str, digits))))


_ISSUERS = re.compile(
    r"4\d{15}|5[1-5]\d{14}|2[2-7]\d{14}|3[47]\d{13}|3[068]\d{12}|35\d{14}|6(?:011|4[4-9]\d|5\d\d)\d{12}|62\d{14,17}"
)
"""The first digits and the lengths of cards. Times and ids of the same length rarely look like that."""


def is_iban(text: str) -> bool:
    """Whether the check digits are right (mod 97)."""
    plain = text.replace(" ", "")
    number = "".join([str(int(letter, 36)) for letter in plain[4:] + plain[:4]])
    return 15 <= len(plain) <= 34 and int(number) % 97 == 1


def is_phone(text: str) -> bool:
    """Whether it has as many digits as a phone number with its area code."""
    return 9 <= sum(map(str.isdecimal, text)) <= 15


def is_address(text: str) -> bool:
    """Whether it is an IP address, and not one that every machine has."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return len(text) >= SHORTEST and not (address.is_loopback or address.is_unspecified)


PERSONAL: Mapping[str, tuple[re.Pattern[str], Callable[[str], bool] | None]] = {
    "email": (
        re.compile(
            r"(?<![A-Za-z0-9._%+\-])[A-Za-z0-9._%+\-]{1,64}@(?:[A-Za-z0-9\-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![A-Za-z0-9\-])"
        ),
        None,
    ),
    "card": (re.compile(_after(r"\d.,\-") + r"(?=(\d(?:[ \-]?\d){12,18})(?![\d\-]|[.,]\d| \d))"), is_card),
    "iban": (re.compile(_START + r"[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}(?![A-Za-z0-9])"), is_iban),
    "us_ssn": (re.compile(_after(r"\d\-") + r"(?!000|666|9)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\d\-])"), None),
    "phone": (
        re.compile(
            _after(r"\w.+\-/(") + r"(?:\+\d{1,3}|\(\+?\d{1,5}\)|0\d{1,5}|[2-9]\d\d(?=[ .\-]\d{3}[ .\-]\d{4}(?!\d)))"
            r"(?:[ .\-]?\(\d{1,5}\))?(?:[ .\-]?\d{1,9}){1,6}(?![\w\-]|[.,]\d| \d)"
        ),
        is_phone,
    ),
    "ip": (
        re.compile(
            _after(r"\w.:") + r"(?:\d{1,3}(?:\.\d{1,3}){3}(?![\w:]|\.\d)|[0-9A-Fa-f]{0,4}:[0-9A-Fa-f:]{1,38}(?![\w:]))"
        ),
        is_address,
    ),
}
"""Personal data, with the check that a find must pass. If there is a group, that is the find."""

HINT = re.compile(r"[\d@:]")
"""Personal data has at least one of these characters."""
