"""The gateway of one range: answers on sockets it was given, and dials nobody.

`network.decide` judges, `config.Bounds` bounds, a stand-in answers.
"""
