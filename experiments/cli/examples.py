"""A line that works for each command, which a refusal of a bare command names.

Words in capitals stand for a user's own: RUN is a run folder, LOG a log of a server.
Every other line answers within a minute.
"""

SERVER = '"vllm serve meta-llama/Llama-3.1-8B"'
EXAMPLES = {
    "fits": f"testbed fits {SERVER} gpu=h100-80gb",
    "capacity": f"testbed capacity --from-vllm {SERVER} gpu=l40s slo.ttft_s=0.5 "
    "--low 13 --high 17 --precision 0.05",
    "plan": 'testbed plan --from-vllm "vllm serve meta-llama/Llama-3.1-8B --max-model-len 8192" '
    "gpu=l40s,h100-80gb slo.ttft_s=1 arrivals.rate=2 arrivals.duration_s=60",
    "mend": 'testbed mend "vllm serve meta-llama/Llama-3.1-8B --num-gpu-blocks-override 3000" '
    "gpu=h100-80gb trace=guidellm trace.prompt_tokens=1500 trace.output_tokens=300 "
    "trace.prompt_tokens_stdev=500 trace.output_tokens_stdev=150 arrivals.rate=7 "
    "arrivals.duration_s=45",
    "hits": f"testbed hits --from-vllm {SERVER} gpu=h100-80gb trace=chat_histories",
    "check": "testbed check testbed.memory.paged.paged:Paged",
    "compare": "testbed compare RUN RUN",
    "report": "testbed report RUN",
    "show charts": "testbed show charts RUN",
    "show memory": "testbed show memory RUN",
    "show timeline": "testbed show timeline RUN",
    "reproduce": "testbed reproduce fig2",
    "plot": "testbed plot fig2 results",
    "validate": 'testbed validate example --from-vllm "vllm serve meta-llama/Llama-3.1-8B '
    '--num-gpu-blocks-override 2000 --max-model-len 8192" gpu=h100-80gb',
    "lockstep": "testbed lockstep vllm --random 2 --requests 50",
    "import model": "testbed import model FOLDER/config.json",
}


def example_of(command: str) -> str | None:
    """The line of a command, as the user types it; None if it has none."""
    return EXAMPLES.get(command.removeprefix("testbed "))
