"""The table of what differs between vLLM's releases, from the facts of `Release`.

`python -m testbed.experiments.vllm_server.release_page` prints the page, the site has it.
"""

from testbed.vllm.releases import DEFAULT, RELEASES, facts

HEAD = """# Releases of vLLM

`release=NUMBER` chooses the release that scheduler, policy and server follow, as in
`+system=vllm-v1 release={newest}`, and beside a command; the default is {default}. The table has
what differs between releases, and the file and function of vLLM that has it. A release is one
value in `testbed/vllm/releases.py`.

"""
WORDS = {True: "yes", False: "no", None: "-"}


def page() -> str:
    """The page in Markdown."""
    releases = list(RELEASES.values())
    head = HEAD.format(newest=releases[-1].number, default=DEFAULT.number)
    numbers = " | ".join(release.number for release in releases)
    rows = [f"| fact | {numbers} | in vLLM |", "|---" * (len(releases) + 2) + "|"]
    for name, fact in facts().items():
        values = " | ".join(_shown(getattr(release, name)) for release in releases)
        rows.append(f"| `{name}`: {fact.meaning} | {values} | `{fact.place}` |")
    return head + "".join(f"{row}\n" for row in rows)


def _shown(value: bool | float | str | None) -> str:
    if value is None or isinstance(value, bool):
        return WORDS[value]
    return value if isinstance(value, str) else f"{value:g}"


if __name__ == "__main__":
    print(page(), end="")
