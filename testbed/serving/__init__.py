"""The paper's OpenAI front end (section 5) over a simulated server in real time."""
