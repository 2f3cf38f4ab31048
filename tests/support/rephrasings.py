"""A real text, and rephrasings of it as a model writes them, one for each style."""

from __future__ import annotations

SOURCE = (
    "When on board H.M.S. 'Beagle,' as naturalist, I was much struck with certain facts in the"
    " distribution of the inhabitants of South America, and in the geological relations of the present to"
    " the past inhabitants of that continent. These facts seemed to me to throw some light on the origin"
    " of species--that mystery of mysteries, as it has been called by one of our greatest philosophers. On"
    " my return home, it occurred to me, in 1837, that something might perhaps be made out on this"
    " question by patiently accumulating and reflecting on all sorts of facts which could possibly have"
    " any bearing on it. After five years' work I allowed myself to speculate on the subject, and drew up"
    " some short notes; these I enlarged in 1844 into a sketch of the conclusions, which then seemed to me"
    " probable: from that period to the present day I have steadily pursued the same object."
)
"""Charles Darwin, On the Origin of Species (1859), its first sentences."""

GOOD = {
    "easy": (
        "I was on a ship. The ship was called the Beagle. My job was to look at plants and animals. In South"
        " America I saw where the animals live. I saw old animals in the rocks too. They looked like the new"
        " ones! That made me think. Where do the kinds of animals, the species, come from? A wise man said it"
        " is the biggest mystery. I went home. In 1837 I had an idea. I would collect many facts and think"
        " about them. I did this for five years. Then I wrote short notes. In 1844 I made the notes longer. I"
        " have worked on this question since that day."
    ),
    "medium": (
        "While serving as naturalist aboard HMS Beagle, Darwin noticed striking patterns in how living things"
        " were distributed across South America, and in the way that continent's present inhabitants were"
        " related to those of its geological past. He believed that these observations could help to explain"
        " the origin of species, a problem that a leading philosopher had described as the mystery of"
        " mysteries. After returning home he decided in 1837 to collect, with patience, every fact that might"
        " bear on the question, and to reflect on it. Five years later he permitted himself to speculate and"
        " wrote brief notes, which he expanded in 1844 into a sketch of the conclusions that he then"
        " considered probable. He has pursued the same object ever since."
    ),
    "hard": (
        "Ensconced aboard the Beagle in the capacity of naturalist, I apprehended with astonishment the"
        " chorology of South America's denizens and the geological consanguinity of its extant and extinct"
        " inhabitants: phenomena seemingly illuminative of the origin of species, that arcanum arcanorum of an"
        " eminent philosopher. Repatriated, I resolved in 1837 upon the assiduous accumulation of, and"
        " rumination over, all germane facts. A quinquennium elapsed ere I ventured speculation in laconic"
        " notes, amplified in 1844 into a sketch of probable conclusions; thenceforth I have prosecuted the"
        " selfsame object unremittingly."
    ),
    "qa": (
        "Question: What struck the author while he was naturalist on board the Beagle?\n"
        "Answer: He was struck by the distribution of the inhabitants of South America and by the geological"
        " relations between the present and the past inhabitants of that continent.\n"
        "\n"
        "Question: On what did these facts seem to throw light?\n"
        "Answer: They seemed to throw light on the origin of species, which a great philosopher called the"
        " mystery of mysteries.\n"
        "\n"
        "Question: What did he do from 1837 on?\n"
        "Answer: After his return he patiently accumulated all sorts of facts that could bear on the"
        " question, and after five years he drew up short notes, enlarged in 1844 into a sketch of the"
        " conclusions."
    ),
    "faq": (
        "Question: Who sailed on board the Beagle?\n"
        "Answer: The author sailed on board H.M.S. Beagle as its naturalist.\n"
        "\n"
        "Question: Which facts struck him in South America?\n"
        "Answer: He was struck by how the inhabitants are distributed there, and by the geological relations of the"
        " present inhabitants of the continent to its past ones.\n"
        "\n"
        "Question: Why did these facts matter to him?\n"
        "Answer: They seemed to throw light on the origin of species, the mystery of mysteries.\n"
        "\n"
        "Question: When did he write about this question?\n"
        "Answer: He began to accumulate facts in 1837, drew up short notes after five years of work, and enlarged them"
        " in 1844 into a sketch of his conclusions."
    ),
    "math": (
        "Problem: A naturalist on board the Beagle returns home and begins in 1837 to accumulate facts on the origin of"
        " species. After five years of work he draws up short notes, and in 1844 he enlarges them into a sketch of"
        " his conclusions. How many years after the notes did he enlarge them?\n"
        "Solution: He drew up the notes five years after 1837. The sum of 1837 and 5 is 1842, hence 1842 for them."
        " He enlarged them in 1844. The difference between 1844 and 1842 is 2. He enlarged the notes two years later."
    ),
    "table": (
        "| Time | What the naturalist did |\n"
        "|---|---|\n"
        "| On board the Beagle | Was struck by the distribution of the inhabitants of South America and the geological"
        " relations of present to past inhabitants |\n"
        "| 1837 | Began to accumulate facts on the origin of species, the mystery of mysteries |\n"
        "| After five years | Speculated on the subject and drew up short notes |\n"
        "| 1844 | Enlarged the notes into a sketch of conclusions |\n"
        "\n"
        "The table shows how facts seen in South America became a sketch of conclusions on the origin of species. The"
        " philosopher who called this a mystery has no name in it."
    ),
    "tutorial": (
        "1. Begin as the author did on board the Beagle: notice which inhabitants live in which parts of South America,"
        " and how the present inhabitants are related to the past ones that geology shows.\n"
        "2. Ask what these facts say about the origin of species, that is, how kinds of living things came to be."
        " A great philosopher called this the mystery of mysteries.\n"
        "3. Accumulate patiently, as the author did from 1837, all facts that have any bearing on the question,"
        " and reflect on them.\n"
        "4. After five years, allow yourself to speculate, and draw up short notes.\n"
        "5. Enlarge the notes into a sketch of your conclusions, as he did in 1844, and pursue the same object."
    ),
}
