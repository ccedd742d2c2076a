package main

import (
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// accountWrites finds the statements that write a table of accounts. The seals of the audit log are none: they prove
// something about its rows, and change none.
var accountWrites = regexp.MustCompile(`\b(INSERT INTO|UPDATE|DELETE FROM|TRUNCATE)\s+(` + strings.Join([]string{
	"users", "retired_usernames", "roles", "role_permissions", "user_roles", "access_version", "declared_permissions",
	"sessions", "password_tokens", "api_tokens", "totp_secrets", "passkeys", "throttles", "known_networks",
	"audit_log",
}, "|") + `)\b`)

// decidesTrust reports whether a function of a file on the auditor's list decides who a caller is or what the caller may
// do. Cursors only say where a page of a list begins, and signer only returns a key: the methods of keys sign.
func decidesTrust(name string) bool {
	if strings.HasSuffix(name, "Cursor") || name == "signer" {
		return false
	}
	return name == "permit" || name == "getPrincipal" || strings.HasPrefix(name, "sign") || strings.HasPrefix(name, "verify")
}

// TestAuditorsListIsComplete: only files on the auditor's list write the tables of accounts, set the principal of a
// caller, or call what signs, verifies and permits. Only cmd_api.go makes a caller the operator, for commands. So a reader
// who trusts these files trusts the accounts.
func TestAuditorsListIsComplete(t *testing.T) {
	t.Parallel()
	set, files := sources(t)
	list := auditorsList(t)
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	pkg := typeCheck(t, slices.Collect(maps.Values(files)), info)

	for name, file := range files {
		if slices.Contains(list, name) {
			continue
		}
		ast.Inspect(file, func(node ast.Node) bool {
			switch n := node.(type) {
			case *ast.BasicLit:
				if n.Kind == token.STRING {
					for _, statement := range accountWrites.FindAllString(n.Value, -1) {
						t.Errorf("%s: %s", set.Position(n.Pos()), statement)
					}
				}
			case *ast.AssignStmt:
				for _, target := range n.Lhs {
					field, ok := target.(*ast.SelectorExpr)
					if ok && field.Sel.Name == "principal" {
						t.Errorf("%s: sets the principal of a caller", set.Position(n.Pos()))
					}
					if ok && field.Sel.Name == "isOperator" && name != "cmd_api.go" {
						t.Errorf("%s: makes a caller the operator", set.Position(n.Pos()))
					}
				}
			case *ast.KeyValueExpr:
				if key, ok := n.Key.(*ast.Ident); ok && (key.Name == "principal" || key.Name == "isOperator") {
					t.Errorf("%s: sets the principal of a caller", set.Position(n.Pos()))
				}
			case *ast.Ident:
				f, ok := info.Uses[n].(*types.Func)
				if ok && f.Pkg() == pkg && slices.Contains(list, set.Position(f.Pos()).Filename) && decidesTrust(f.Name()) {
					t.Errorf("%s: calls %s", set.Position(n.Pos()), f.Name())
				}
			}
			return true
		})
	}
}
