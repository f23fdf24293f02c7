"""What the demo checkpoint has to say: a few hundred words of small talk, written for it.

An opener ends in "!", a middle sentence in ".", a closer in "?". A reply is one opener, some middles of one
topic in their order and one closer, and only a closer may end it. The order has no way back, so a model that
has learned the corpus stops by itself, whether it samples or takes the likeliest word each time.
Knows nothing of tokens or tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

NUM_STARTS = 3
"""A reply begins at one of the first middles of its topic."""
SKIP_PROBABILITY = 0.15
"""Chance that a reply leaves out any one of the middles after its first."""


@dataclass(frozen=True, slots=True)
class Topic:
    """Questions a person may ask and the sentences that answer them, in the order they are said."""

    questions: tuple[str, ...]
    middles: tuple[str, ...]


OPENERS = (
    "Thank you for asking!",
    "That is a lovely question!",
    "I am so glad you asked!",
    "What a good thing to talk about!",
    "Hello, it is nice to hear from you!",
    "Oh, I have thought about this a lot!",
    "Good, let us begin with the simple part!",
    "Of course, I would be happy to help!",
)

CLOSERS = (
    "Would you like to hear more about it?",
    "Shall we go on with the next part?",
    "What do you think about that?",
    "Does that answer your question?",
    "Is there anything else you want to know?",
    "How does that sound to you?",
)

TOPICS = (
    Topic(
        ("What is the weather like today?", "Will it rain tomorrow?", "Is it cold outside?"),
        (
            "The morning starts with a little fog over the river.",
            "Around noon the clouds open and the sun comes out.",
            "A warm wind blows from the south all afternoon.",
            "You may want to take a light coat with you.",
            "In the evening there could be some rain near the hills.",
            "Tomorrow looks dry and a few degrees cooler.",
        ),
    ),
    Topic(
        ("Can you tell me about music?", "What song do you like?", "How do I learn the piano?"),
        (
            "A good song often begins with only three notes.",
            "When I listen closely, I hear the quiet places between the sounds.",
            "The piano is friendly, because every key waits for you.",
            "Play slowly at first, and let both hands listen to each other.",
            "Ten minutes every day will take you further than one long Sunday.",
            "Old recordings are full of small and happy mistakes.",
        ),
    ),
    Topic(
        ("What should I cook tonight?", "Do you know a good recipe?", "How long do I boil an egg?"),
        (
            "Start with an onion, some oil, and a heavy pan.",
            "Let the soup stand for an hour, and it will taste twice as good.",
            "Fresh bread and butter make any dinner feel complete.",
            "A soft egg needs about six minutes in boiling water.",
            "Add the salt early and the lemon at the very end.",
            "If you have guests, cook the rice before they arrive.",
        ),
    ),
    Topic(
        ("Where should I travel this summer?", "Tell me about the mountains.", "How far is the sea?"),
        (
            "The night train to the coast is slow, but the view is wonderful.",
            "In the mountains the paths are marked with red and white paint.",
            "A small village can teach you more than a famous city.",
            "Bring good shoes, a paper map, and one book you love.",
            "The sea is best in September, when the water is still warm.",
            "Ask the people at the market where they eat their lunch.",
        ),
    ),
    Topic(
        ("Who are you?", "What can you do for me?", "How do you work?"),
        (
            "I am a very small model that lives inside this server.",
            "My words come one by one, and my voice follows close behind.",
            "You can speak over me at any time, and I will stop.",
            "I only know a few hundred words, so please be patient.",
            "Every sentence I say was learned in less than a minute.",
            "A larger model will give you better answers than mine.",
        ),
    ),
    Topic(
        ("How can I sleep better?", "I feel tired today.", "What should I do this morning?"),
        (
            "Try to rise at the same hour, even when the week is over.",
            "A short walk after lunch can do more than a second coffee.",
            "Put the bright screen away before you go to bed.",
            "Open the window and let the cool air into the room.",
            "Write down what worries you and leave it on the table.",
            "Rest is not lost time, it is how the body repairs itself.",
        ),
    ),
)

SYSTEM_PROMPT = "You are a helpful voice assistant."


def make_exchange(rng: random.Random) -> tuple[str, str]:
    """One question and one reply to it, drawn from the corpus."""
    topic = rng.choice(TOPICS)
    first, *rest = topic.middles[rng.randrange(NUM_STARTS) :]
    kept = [sentence for sentence in rest if rng.random() >= SKIP_PROBABILITY]
    return rng.choice(topic.questions), " ".join((rng.choice(OPENERS), first, *kept, rng.choice(CLOSERS)))


def all_sentences() -> list[str]:
    """Every sentence of the corpus once, with and without the space that stands before it in a reply."""
    plain = [SYSTEM_PROMPT, *OPENERS, *CLOSERS]
    for topic in TOPICS:
        plain += [*topic.questions, *topic.middles]
    return plain + [" " + sentence for sentence in plain]
