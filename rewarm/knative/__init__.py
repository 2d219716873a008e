"""Kubernetes and Knative, as far as no cluster is needed: names, manifests from the configuration, and their check.

In comes a :class:`rewarm.config.Config`, or manifests that somebody wrote; out come manifests as dictionaries, or
findings that say what to change. Everything here is a pure function. What talks to a cluster is in
``controller/backends``, and takes its names from ``rewarm.knative.names``.
"""
