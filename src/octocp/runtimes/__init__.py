"""What other tools' formats say: text to plain data and back, and the rules that those tools do not check themselves.

Nothing here knows a plan or a problem; exporters (`octocp.report.export`) and importers (`octocp.importers`) do.
"""
