"""From ranges to a file: number formats, what the quantiser leaves wrong, what a runtime takes."""
