# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain report`: one page of HTML about one or more runs.

`command` is the command, `facts` reads what the page shows, `page` lays it out, `chart` draws.
"""
