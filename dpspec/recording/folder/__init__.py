"""The folder of a recorded run: one step as bytes, bytes under a chain of digests, and how strangers read them.

``step_record`` and ``members``: one step, and who was drawn; ``header``: what is known of the run as a whole;
``journal``: frames that are only appended; ``run_folder``: all of it, written once. Nothing here imports torch.
"""
