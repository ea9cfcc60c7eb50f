"""What `make test-deploy` prints while it works: a heading for each part, a sentence a check."""


def heading(words: str) -> None:
    """Begin a part."""
    print(f"\n{words}", flush=True)


def say(sentence: str) -> None:
    """Say what was seen to hold."""
    print(f"  {sentence}", flush=True)
