"""The page `/docs`: all calls of the API and their fields, without scripts or other servers."""

from __future__ import annotations

from html import escape
from typing import Any

__all__ = ["api_page"]

Schema = dict[str, Any]


def api_page(schema: Schema) -> str:
    """The OpenAPI description of a server as an HTML page."""
    title, models = schema["info"]["title"], schema["components"]["schemas"]
    calls = [_call(method, path, call) for path, methods in schema["paths"].items() for method, call in methods.items()]
    fields = [_model(name, model) for name, model in sorted(models.items())]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{escape(title)}</title><link rel="stylesheet" href="/desk.css"></head><body class="docs"><main>'
        f"<h1>{escape(title)}</h1><p>{escape(schema['info']['description'])} "
        'For programs: <a href="/openapi.json">/openapi.json</a>.</p>'
        f"<h2>Calls</h2>{''.join(calls)}<h2>Fields</h2>{''.join(fields)}</main></body></html>"
    )


def _call(method: str, path: str, call: Schema) -> str:
    rows = [(item["name"], _type(item["schema"]), item.get("description", "")) for item in call.get("parameters", [])]
    takes = _body(call.get("requestBody", {}))
    if takes:
        rows.append(("body", takes, ""))
    answers = {status: _body(answer) for status, answer in call["responses"].items() if status.startswith("2")}
    rows += [(f"returns {status}", kind, "") for status, kind in answers.items() if kind]
    text = str(call.get("description") or call["summary"])
    return (
        f"<section><h3><code>{method.upper()} {escape(path)}</code></h3><p>{escape(text)}</p>{_table(rows)}</section>"
    )


def _model(name: str, model: Schema) -> str:
    required = model.get("required", [])
    rows = [
        (field, _type(kind) + ("" if field in required else ", optional"), kind.get("description", ""))
        for field, kind in model.get("properties", {}).items()
    ]
    text = escape(model.get("description", ""))
    return f'<section><h3 id="{escape(name)}"><code>{escape(name)}</code></h3><p>{text}</p>{_table(rows)}</section>'


def _table(rows: list[tuple[str, str, str]]) -> str:
    """Rows of a name, a type as HTML, and a description."""
    cells = [
        f"<tr><td><code>{escape(name)}</code></td><td>{kind}</td><td>{escape(text)}</td></tr>"
        for name, kind, text in rows
    ]
    return f'<div class="table"><table>{"".join(cells)}</table></div>' if cells else ""


def _body(part: Schema) -> str:
    contents = part.get("content", {}).values()
    return next((_type(content["schema"]) for content in contents if content.get("schema")), "")


def _type(kind: Schema) -> str:
    """A type as HTML, with links to the models that it names."""
    if "$ref" in kind:
        name = escape(kind["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in kind:
        return " or ".join(_type(one) for one in kind["anyOf"])
    if kind.get("type") == "array":
        return f"list of {_type(kind.get('items', {}))}"
    if "enum" in kind:
        return " or ".join(f"<code>{escape(str(value))}</code>" for value in kind["enum"])
    limits = [
        f"{word} {kind[name]}"
        for name, word in (("minimum", "from"), ("maximum", "to"), ("maxLength", "at most"))
        if name in kind
    ]
    return escape(" ".join([str(kind.get("format") or kind.get("type") or "any"), *limits]))
