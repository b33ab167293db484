"""The page that says what a server answers; it loads nothing from elsewhere."""

from html import escape

from testbed.serving.answering import NOT_SAMPLED, WITHOUT_TEXT
from testbed.serving.protocol import NOT_SERVED, ChatBody, CompletionBody

STYLE = (
    "body{font:16px/1.5 sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem}"
    "code,pre{background:#f2f2f2;padding:.1em .3em}pre{padding:1em;white-space:pre-wrap}"
    "td,th{text-align:left;padding:.2em 1.5em .2em 0;vertical-align:top}"
)
ENDPOINTS = {
    "POST /v1/completions": "A text, token ids, or several of them, continued.",
    "POST /v1/chat/completions": "A conversation, continued by the assistant.",
    "GET /v1/models": "The model, its longest sequence, and whether it is simulated.",
    "GET /health": "200 while the engine serves, else 503.",
    "GET /metrics": "Prometheus's text format, under vLLM's names.",
}
ERRORS = {
    "400": "The request is wrong, or asks for what the server does not have.",
    "401": "The API key is missing or wrong.",
    "404": "No such model or path.",
    "408": "The body did not arrive in time.",
    "413": "The body is too long.",
    "429": "The queue is full.",
    "503": "The server shuts down, its engine has ended, or it has too many connections.",
}


def docs_page(model: str, is_simulated: bool) -> str:
    """The page of a server of this model, as HTML."""
    fields = dict.fromkeys([*CompletionBody.model_fields, *ChatBody.model_fields])
    special = WITHOUT_TEXT if is_simulated else tuple(NOT_SAMPLED)
    taken = [name for name in fields if name not in special and name not in NOT_SERVED]
    about_special = (
        "accepted without effect, and named in the header x-testbed-ignored"
        if is_simulated
        else "refused, but for the values that change nothing"
    )
    parameters = {
        "obeyed": _codes(taken),
        about_special: _codes(special),
        "refused": _codes(NOT_SERVED),
    }
    kind = "A simulated server: its answers are placeholder words." if is_simulated else ""
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(model)}</title>"
        f"<style>{STYLE}</style><h1>{escape(model)}</h1><p>{kind}"
        f"<h2>Endpoints</h2>{_table(_coded(ENDPOINTS))}"
        f"<h2>Parameters</h2>{_table(parameters)}"
        f"<h2>Errors</h2><p>In OpenAI's shape.{_table(ERRORS)}"
        f"<h2>Example</h2><pre>{escape(_example(model))}</pre></html>"
    )


def _example(model: str) -> str:
    body = f'{{"model": "{model}", "prompt": "Once", "max_tokens": 8}}'
    return f"curl ADDRESS/v1/completions -H 'Content-Type: application/json' -d '{body}'"


def _coded(rows: dict[str, str]) -> dict[str, str]:
    return {f"<code>{escape(name)}</code>": escape(text) for name, text in rows.items()}


def _codes(names: list[str] | tuple[str, ...]) -> str:
    return ", ".join(f"<code>{escape(name)}</code>" for name in names)


def _table(rows: dict[str, str]) -> str:
    lines = "".join(f"<tr><th>{name}<td>{text}" for name, text in rows.items())
    return f"<table>{lines}</table>"
