package testbed

import (
	"regexp"
	"strings"
)

// opaqueRE finds the parts of an SQL text in which words mean nothing:
// comments, string and identifier quotes, in this order of alternatives.
// Dollar quotes are found by withoutQuotes; RE2 cannot match their two ends.
var opaqueRE = regexp.MustCompile(`--[^\n]*|(?s:/\*.*?\*/)|'(?:[^']|'')*'|"(?:[^"]|"")*"|\$[A-Za-z_0-9]*\$`)

// isCommit says whether one of the statements in an SQL text is a COMMIT or
// its other name, END.
func isCommit(sql string) bool {
	for statement := range strings.SplitSeq(withoutQuotes(sql), ";") {
		words := strings.Fields(statement)
		if len(words) > 0 && (strings.EqualFold(words[0], "COMMIT") || strings.EqualFold(words[0], "END")) {
			return true
		}
	}
	return false
}

// withoutQuotes replaces comments and quoted parts by a blank.
func withoutQuotes(sql string) string {
	var out strings.Builder
	for {
		at := opaqueRE.FindStringIndex(sql)
		if at == nil {
			out.WriteString(sql)
			return out.String()
		}
		out.WriteString(sql[:at[0]])
		out.WriteByte(' ')
		opened := sql[at[0]:at[1]]
		sql = sql[at[1]:]
		if opened[0] == '$' {
			_, sql, _ = strings.Cut(sql, opened)
		}
	}
}
