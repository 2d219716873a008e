"""OpenAI's conventions on durable jobs: responses in the background, files and batches.

In come bodies and forms as the stock client libraries send them; out go their objects, and jobs of the kinds
``response`` and ``batch`` over :class:`gateway.jobs.JobDesk`. ``OpenAIOffice`` puts it together: pages for the table of
paths, the loop that carries batches out. Lines, outcomes, objects, numbers of events and forms are pure (``lines``,
``outcomes``, ``responses_object``, ``numbering``, ``form``).
"""

from gateway.openai.office import OpenAIOffice

__all__ = ["OpenAIOffice"]
