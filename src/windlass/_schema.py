"""Reads a function's signature and docstring: its parameters as a JSON schema and as a type to decode into."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import FunctionType, SimpleNamespace
from typing import Annotated, Any, cast, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from .errors import ToolDefinitionError

REQUIRED = inspect.Parameter.empty
_KEPT_DEFAULTS = (type(None), bool, int, float, str)
_SEQUENCES = (list, tuple, set, frozenset)
_NOTHING: Mapping[str, Any] = {}
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Parameter(Struct, frozen=True):
    """One parameter of a tool; `default` is `REQUIRED` if it has no default."""

    name: str
    annotation: Any
    default: Any
    description: str
    positional_only: bool
    keyword_only: bool

    @property
    def bare_type(self) -> Any:
        """The annotation without the extras of `Annotated`."""
        return self.annotation.__origin__ if get_origin(self.annotation) is Annotated else self.annotation


class Arguments(Struct, gc=False):
    """Validated arguments of one call: a field per parameter, in the order of the signature."""


# ── reading a signature ───────────────────────────────────────────────────────────────────────────────────────────


def signature_parameters(fn: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a function, without forcing the evaluation of their annotations."""
    if sys.version_info >= (3, 14):
        import annotationlib

        signature = inspect.signature(fn, annotation_format=annotationlib.Format.FORWARDREF)
    else:
        signature = inspect.signature(fn)
    return list(signature.parameters.values())


class SignatureReader:
    """Turns the parameters of one function into `Parameter`s; raises an error for one it cannot describe."""

    def __init__(
        self,
        tool: str,
        function: FunctionType,
        descriptions: Mapping[str, str],
        names: Mapping[str, Any],
    ) -> None:
        self._tool = tool
        self._descriptions = descriptions
        self._globals = function.__globals__
        self._locals = {**names, **_closure_names(function)}

    def read(self, raw: inspect.Parameter) -> Parameter:
        """Read a parameter that the model fills in."""
        if raw.kind in _VARIADIC:
            stars = "*" if raw.kind is inspect.Parameter.VAR_POSITIONAL else "**"
            raise self._refusal(raw, "cannot be described to a model; name each parameter", stars)
        if raw.annotation is inspect.Parameter.empty:
            raise self._refusal(raw, f"has no annotation; give it a type, as in `{raw.name}: str`")
        annotation = self._resolved(raw)
        extras = annotation.__metadata__ if get_origin(annotation) is Annotated else ()
        self._check_constraints(raw, extras)
        self._check_type(raw, annotation)
        description = _description(extras) or self._descriptions.get(raw.name, "")
        return _parameter(raw, annotation, description)

    def read_supplied(self, raw: inspect.Parameter) -> Parameter:
        """Read a parameter that the runtime fills in; its annotation is ignored."""
        return _parameter(raw, Any, "")

    def _resolved(self, raw: inspect.Parameter) -> Any:
        holder = SimpleNamespace(__annotations__={raw.name: raw.annotation})
        try:
            return get_type_hints(holder, self._globals, self._locals, include_extras=True)[raw.name]
        except Exception as exc:
            hint = "import or define it where the tool is defined, outside `if TYPE_CHECKING:`"
            raise self._refusal(raw, f"has an annotation that cannot be resolved ({exc}); {hint}") from exc

    def _check_constraints(self, raw: inspect.Parameter, extras: Sequence[Any]) -> None:
        hint = "use `Annotated[..., msgspec.Meta(...)]`"
        if type(raw.default).__module__ == "pydantic.fields":
            raise self._refusal(raw, f"has a pydantic field as its default; {hint}")
        for extra in extras:
            if _would_be_ignored(extra):
                raise self._refusal(raw, f"carries {extra!r}, which would be ignored; {hint}")

    def _check_type(self, raw: inspect.Parameter, annotation: Any) -> None:
        try:
            _components([annotation])
            msgspec.json.Decoder(annotation, dec_hook=_read_model)
        except Exception as exc:
            text = inspect.formatannotation(annotation)
            why = str(exc).strip().splitlines()[-1] if str(exc).strip() else type(exc).__name__
            hint = "use a type that JSON can carry: a scalar, list, dict, dataclass, msgspec Struct, pydantic model"
            raise self._refusal(raw, f"has an annotation that cannot be described, {text} ({why}); {hint}") from exc

    def _refusal(self, raw: inspect.Parameter, what: str, stars: str = "") -> ToolDefinitionError:
        return ToolDefinitionError(f"tool {self._tool!r}: parameter '{stars}{raw.name}' {what}", tool=self._tool)


def _parameter(raw: inspect.Parameter, annotation: Any, description: str) -> Parameter:
    return Parameter(
        raw.name,
        annotation,
        raw.default,
        description,
        positional_only=raw.kind is inspect.Parameter.POSITIONAL_ONLY,
        keyword_only=raw.kind is inspect.Parameter.KEYWORD_ONLY,
    )


def _closure_names(function: FunctionType) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # a name that gets its value later, such as the tool's own
            continue
    return names


def _description(extras: Sequence[Any]) -> str:
    for extra in extras:
        text = extra if isinstance(extra, str) else getattr(extra, "description", None)
        if isinstance(text, str) and text:
            return inspect.cleandoc(text)
    return ""


def _would_be_ignored(extra: object) -> bool:
    """Whether this is a pydantic constraint, on a parameter that pydantic does not validate."""
    package = type(extra).__module__.partition(".")[0]
    return package in ("pydantic", "annotated_types") and bool(getattr(extra, "metadata", True))


# ── schema and type ───────────────────────────────────────────────────────────────────────────────────────────────


def object_schema(parameters: Sequence[Parameter]) -> dict[str, Any]:
    """The JSON schema of an object with these parameters; referenced types are in its `$defs`."""
    schemas, definitions = _components([p.annotation for p in parameters])
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {p.name: _property(p, s) for p, s in zip(parameters, schemas, strict=True)},
        "required": [p.name for p in parameters if p.default is REQUIRED],
        "additionalProperties": False,
    }
    if definitions:
        schema["$defs"] = definitions
    return schema


def arguments_type(name: str, parameters: Sequence[Parameter]) -> type[Arguments]:
    """A struct type with a field per parameter."""
    columns = [_field(p) for p in parameters]
    made = msgspec.defstruct(name, columns, bases=(Arguments,), kw_only=True, forbid_unknown_fields=True, gc=False)
    return cast("type[Arguments]", made)


def arguments_decoder(arguments: type[Arguments]) -> Callable[[str], Arguments]:
    """A function that decodes and validates JSON in one pass."""
    return msgspec.json.Decoder(arguments, dec_hook=_read_model).decode


class Completion(Struct, frozen=True):
    """How validated arguments become canonical JSON: parameters in their order, defaults filled in, JSON types only.

    `hidden` has the defaults without a JSON form: they are left out. `plain` is true if JSON can hold every value as it
    is. Other types may run code of their own, so their JSON is used only if it reads back as the same text.
    """

    encode: Callable[[Any], bytes]
    decode: Callable[[str], Arguments]
    names: tuple[str, ...]
    hidden: Mapping[str, Any]
    plain: bool

    def text(self, arguments: Arguments, json: str) -> str:
        """The canonical JSON of arguments that were decoded from `json`."""
        if self.plain:
            return self._encode_visible(arguments) if self.hidden else self.encode(arguments).decode()
        try:
            text = self._encode_visible(arguments)
            if self._encode_visible(self.decode(text)) == text:
                return text
        except Exception:  # raised by the code of a type
            pass
        return self._encode_as_written(arguments, json)

    def _encode_visible(self, arguments: Arguments, written: Mapping[str, Any] = _NOTHING) -> str:
        members: list[str] = []
        for name in self.names:
            value = getattr(arguments, name)
            if name not in self.hidden or value is not self.hidden[name]:
                if not self.plain:
                    _fill_in(value)
                members.append(f'"{name}":{self.encode(written.get(name, value)).decode()}')
        return "{" + ",".join(members) + "}"

    def _encode_as_written(self, arguments: Arguments, json: str) -> str:
        """Encode the values as the model wrote them, for types that cannot read their own JSON."""
        written = msgspec.json.decode(json) if json.strip() else None
        return self._encode_visible(arguments, written or _NOTHING)


def _fill_in(value: object) -> None:
    """Copy class-level defaults into the dataclass instances of a value: msgspec does not encode them otherwise."""
    queue = [value]
    while queue:
        value = queue.pop()
        if isinstance(value, Struct):
            queue += [getattr(value, name) for name in value.__struct_fields__]
        elif isinstance(value, dict):
            queue += value.values()
        elif isinstance(value, _SEQUENCES):
            queue += value
        elif is_dataclass(value) and not isinstance(value, type):
            for name in [item.name for item in fields(value) if hasattr(value, item.name)]:
                queue.append(getattr(value, name))
                object.__setattr__(value, name, queue[-1])


def completion(parameters: Sequence[Parameter], decode: Callable[[str], Arguments]) -> Completion:
    """The `Completion` for a tool with these parameters."""
    models = _ModelSchemas()
    schemas, definitions = msgspec.json.schema_components(
        [p.annotation for p in parameters], schema_hook=models.describe, ref_template="#/$defs/{name}"
    )
    sets = b'"uniqueItems"' in msgspec.json.encode((schemas, definitions))  # sets have no order
    return Completion(
        msgspec.json.Encoder(enc_hook=_dump_model, order="deterministic" if sets else None).encode,
        decode,
        tuple([p.name for p in parameters]),
        {p.name: p.default for p in parameters if p.default is not REQUIRED and _default_json(p) is None},
        plain=not models.used and all("enum" in definition for definition in definitions.values()),
    )


def _default_json(parameter: Parameter) -> str | None:
    """The default as JSON; None if it does not read back as the same value."""
    default = parameter.default
    try:
        text = msgspec.json.encode(default, enc_hook=_dump_model).decode()
        read = type_decoder(parameter.annotation)(text)
        if isinstance(default, set | frozenset):
            return text if set(read) == default else None
        if isinstance(default, _SEQUENCES) and isinstance(read, _SEQUENCES):
            return text if list(read) == list(default) else None
        return text if read == default else None
    except Exception:  # a sentinel that only the function understands may raise anything
        return None


def type_schema(annotation: Any) -> dict[str, Any]:
    """The complete JSON schema of one type; referenced types are in its `$defs`."""
    (schema,), definitions = _components([annotation])
    if set(schema) == {"$ref"} and (name := schema["$ref"].rpartition("/")[2]) in definitions:
        schema = definitions.pop(name) if not _refers_to(definitions, schema["$ref"]) else definitions[name]
    return {**schema, "$defs": definitions} if definitions else dict(schema)


_NAMED_SCHEMAS = ("properties", "$defs")


def closed_schema(schema: Any) -> Any:
    """A schema whose objects allow no further properties, unless they say otherwise."""
    if isinstance(schema, list):
        return [closed_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _close_nested(name, value) for name, value in schema.items()}
    return {"additionalProperties": False, **closed} if "properties" in closed else closed


def _close_nested(name: str, value: Any) -> Any:
    if name in _NAMED_SCHEMAS:
        return {key: closed_schema(nested) for key, nested in value.items()}
    return closed_schema(value) if name in ("items", "anyOf") else value


def _refers_to(definitions: Mapping[str, Any], reference: str) -> bool:
    return f'"{reference}"' in msgspec.json.encode(definitions).decode()


def type_decoder(annotation: Any) -> Callable[[str], Any]:
    """A function that decodes JSON into one type."""
    return msgspec.json.Decoder(annotation, dec_hook=_read_model).decode


def type_text(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """A type in a few words: `integer`, `array of string`, `"a" | "b"`."""
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        target = definitions.get(name, {})
        return type_text(target, definitions) if "enum" in target else name
    if "enum" in schema:
        return " | ".join(msgspec.json.encode(value).decode() for value in schema["enum"])
    if "anyOf" in schema:
        return " | ".join(type_text(option, definitions) for option in schema["anyOf"])
    items = schema.get("items")
    if items and isinstance(items, dict):
        return f"array of {type_text(items, definitions)}"
    return str(schema.get("type", "any"))


def _components(annotations: Sequence[Any]) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    models = _ModelSchemas()
    schemas, definitions = msgspec.json.schema_components(
        annotations, schema_hook=models.describe, ref_template="#/$defs/{name}"
    )
    return schemas, {**definitions, **models.definitions}


def _property(parameter: Parameter, schema: dict[str, Any]) -> dict[str, Any]:
    described = dict(schema)
    if parameter.description:
        described["description"] = parameter.description
    if parameter.default is not REQUIRED:
        described.update(_default_property(parameter.default))
    return described


def _default_property(default: object) -> dict[str, Any]:
    try:
        return {"default": msgspec.json.decode(msgspec.json.encode(default, enc_hook=_dump_model))}
    except (TypeError, ValueError, OverflowError):  # a sentinel that only the function understands
        return {}


def _field(parameter: Parameter) -> tuple[str, Any] | tuple[str, Any, Any]:
    """A field with the parameter's default, read from JSON as if the model had written it."""
    name, annotation, default = parameter.name, parameter.annotation, parameter.default
    if default is REQUIRED:
        return name, annotation
    if (json := _default_json(parameter)) is not None:
        read = type_decoder(annotation)
        default = read(json)
        if not isinstance(default, _KEPT_DEFAULTS):
            return name, annotation, msgspec.field(default_factory=lambda: read(json))
    if isinstance(default, _KEPT_DEFAULTS):
        return name, annotation, default
    return name, annotation, msgspec.field(default_factory=lambda: default)


# ── pydantic, known by the shape of its models so that it is never imported here ──────────────────────────────────


class _ModelSchemas:
    """Describes pydantic models and collects the definitions they refer to, under unique names."""

    def __init__(self) -> None:
        self.definitions: dict[str, Any] = {}
        self._owners: dict[str, Any] = {}

    @property
    def used(self) -> bool:
        """Whether it has described a model."""
        return bool(self._owners)

    def describe(self, model: Any) -> dict[str, Any]:
        _check_model(model)
        prefix: str = model.__name__
        while self._owners.setdefault(prefix, model) is not model:
            prefix += "_"
        schema: dict[str, Any] = model.model_json_schema(ref_template=f"#/$defs/{prefix}_{{model}}")
        for name, definition in schema.pop("$defs", {}).items():
            self.definitions[f"{prefix}_{name}"] = definition
        return schema


def _read_model(model: Any, value: object) -> object:
    _check_model(model)
    try:
        return model.model_validate_json(msgspec.json.encode(value))
    except ValueError as exc:
        raise ValueError(_model_problems(exc)) from exc


def _dump_model(value: Any) -> object:
    _check_model(type(value))
    return value.model_dump(mode="json", by_alias=True)


def _check_model(model: type) -> None:
    if not hasattr(model, "model_validate_json"):
        raise TypeError(f"type {inspect.formatannotation(model)} is not supported")


def _model_problems(exc: Any) -> str:
    problems = exc.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, p['loc'])) or 'value'}: {p['msg']}" for p in problems[:3])


# ── docstrings ────────────────────────────────────────────────────────────────────────────────────────────────────

# Patterns are texts: `re` compiles them when the first tool is defined, not when Windlass is imported.
_GOOGLE = r"(?m)^(?:Args|Arguments|Parameters|Params):[ \t]*$"
_GOOGLE_ENTRY = r"(\w+)(?:\s*\(.*?\))?\s*:\s*(.*)"
_NUMPY = r"(?m)^Parameters[ \t]*\n-{3,}[ \t]*$"
_NUMPY_ENTRY = r"(\w+(?:\s*,\s*\w+)*)\s*(?::.*)?()$"
_NUMPY_SECTION = r"(?m)^\S.*\n-{3,}[ \t]*$"
_SPHINX = r"(?m)^:(?:param|parameter|arg|argument|type|returns?|rtype|raises?)\b"
_SPHINX_ENTRY = r":(?:param|parameter|arg|argument)\s+(?:[^:]*\s)?(\w+)\s*:\s*(.*)"


def read_docstring(doc: str | None) -> tuple[str, dict[str, str]]:
    """The text before the section of parameters, and the description of each parameter."""
    text = inspect.cleandoc(doc or "")
    if found := re.search(_NUMPY, text):
        section = re.split(_NUMPY_SECTION, text[found.end() :])[0]
        return text[: found.start()].strip(), _entries(section, _NUMPY_ENTRY)
    if found := re.search(_GOOGLE, text):
        return text[: found.start()].strip(), _entries(_indented(text[found.end() :]), _GOOGLE_ENTRY)
    if found := re.search(_SPHINX, text):
        return text[: found.start()].strip(), _entries(text[found.start() :], _SPHINX_ENTRY)
    return text, {}


def _indented(text: str) -> str:
    """The leading lines that are indented or blank, without their common indentation."""
    lines: list[str] = []
    for line in text.strip("\n").splitlines():
        if line and not line[0].isspace():
            break
        lines.append(line)
    return inspect.cleandoc("\n" + "\n".join(lines))


def _entries(section: str, entry: str) -> dict[str, str]:
    """Names at the margin, each with its text: the rest of the line and the indented lines below it."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in section.splitlines():
        if line[:1].isspace():
            for name in names:
                found[name] = f"{found[name]} {line.strip()}".strip()
        elif line:
            match = re.match(entry, line)
            names = re.split(r"\s*,\s*", match[1]) if match else []
            found.update((name, match[2].strip()) for name in names if match)
    return found
