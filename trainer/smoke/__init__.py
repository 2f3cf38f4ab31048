"""The smoke run: most mistakes of an architecture, found in a minute on a CPU.

    dailytrain smoke ARCH

`command` is trusted code: it starts `inside` in the sandbox, which imports the architecture, counts its full size
without computing anything and trains a small one for 200 steps; then it asks that model, through the scorer's door,
whether it looks ahead. `findings` puts what came out into sentences. A node runs the same for an entry.

It sorts out mistakes and proves nothing: whoever wants to cheat can. What counts is scored later, elsewhere.
"""
