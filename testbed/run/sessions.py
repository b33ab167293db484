"""The sessions of a run as a table."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def sessions(table: "pd.DataFrame", session: Any) -> "pd.DataFrame":
    """One row a session, of its requests that have ended; output tokens are those of all sequences
    of a request, none of a rejected one. table: of requests; session: the session of each request
    id.
    """
    generated = (table["output_len"] * table["num_seqs"]).where(table["first_token_s"].notna(), 0)
    table = table.assign(
        session=session[table["request_id"]],
        ttft_s=table["first_token_s"] - table["arrival_s"],
        output_tokens=generated,
    )
    return table.groupby("session", as_index=False).agg(
        requests=("request_id", "size"),
        output_tokens=("output_tokens", "sum"),
        start_s=("arrival_s", "min"),
        end_s=("finish_s", "max"),
        ttft_s_mean=("ttft_s", "mean"),
    )
