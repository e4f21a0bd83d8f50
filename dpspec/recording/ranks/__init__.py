"""The ranks of a training in several processes: how they find each other, and what each of them observes."""
