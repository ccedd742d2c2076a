package main

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// codesFile declares all codes of problems and of their fields.
const codesFile = "http_codes.go"

// codeType returns the name of a type of codes, or "" for any other type.
func codeType(t types.Type) string {
	named, ok := t.(*types.Named)
	if ok && strings.HasSuffix(named.Obj().Name(), "Code") {
		return named.Obj().Name()
	}
	return ""
}

// declaredCodes returns the codes that the program declares, by type, each with its meaning. It notes codes that the
// program does not use, or writes as text elsewhere.
func declaredCodes(t *testing.T) map[string]map[string]string {
	t.Helper()
	set, files := sources(t)
	info := &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{},
		Defs:  map[*ast.Ident]types.Object{},
		Uses:  map[*ast.Ident]types.Object{},
	}
	typeCheck(t, slices.Collect(maps.Values(files)), info)

	used := slices.Collect(maps.Values(info.Uses))
	declared := map[string]map[string]string{}
	ast.Inspect(files[codesFile], func(node ast.Node) bool {
		spec, ok := node.(*ast.ValueSpec)
		if !ok {
			return true
		}
		code := info.Defs[spec.Names[0]].(*types.Const)
		if !slices.Contains(used, types.Object(code)) {
			t.Errorf("%s is not used", code.Name())
		}
		kind, value := codeType(code.Type()), constant.StringVal(code.Val())
		if declared[kind] == nil {
			declared[kind] = map[string]string{}
		}
		if declared[kind][value] != "" {
			t.Errorf("%s: a second constant has the code %s", code.Name(), value)
		}
		declared[kind][value] = strings.TrimSpace(spec.Doc.Text())
		return true
	})

	for expression, found := range info.Types {
		at := set.Position(expression.Pos())
		literal, isLiteral := expression.(*ast.BasicLit)
		if isLiteral && literal.Kind == token.STRING && codeType(found.Type) != "" && at.Filename != codesFile {
			t.Errorf("%s: %s is a constant in %s", at, literal.Value, codesFile)
		}
	}
	return declared
}

// TestCodes: every code of a problem is a constant of one file, which the program uses. openapi.yaml has all of them,
// with the same meaning, and no other. The templates of pages compare with no other.
func TestCodes(t *testing.T) {
	t.Parallel()
	declared := declaredCodes(t)

	table := fmt.Sprint(at(document(), "components", "schemas", "Problem", "properties", "code", "description"))
	documented := map[string]string{}
	for _, row := range regexp.MustCompile(`(?m)^\| ([a-z_]+) \| (.+) \|$`).FindAllStringSubmatch(table, -1) {
		documented[row[1]] = row[2]
	}
	delete(documented, "code") // the heading
	compareCodes(t, "a problem", documented, declared["problemCode"])

	enum, _ := at(document(), "components", "schemas", "FieldError", "properties", "code", "enum").([]node)
	ofFields := map[string]string{}
	for _, code := range enum {
		ofFields[fmt.Sprint(code)] = declared["fieldCode"][fmt.Sprint(code)]
	}
	compareCodes(t, "a field", ofFields, declared["fieldCode"])

	inTemplates := regexp.MustCompile(`Refusal\.Code "([a-z_]+)"`).FindAllStringSubmatch(readAll(t, "console/*.html"), -1)
	for _, m := range inTemplates {
		if declared["problemCode"][m[1]] == "" {
			t.Errorf("console/*.html: there is no code %s", m[1])
		}
	}
}

// compareCodes notes each code that openapi.yaml and the program do not agree on.
func compareCodes(t *testing.T, what string, documented, declared map[string]string) {
	t.Helper()
	for code, meaning := range declared {
		if documented[code] != meaning {
			t.Errorf("%s %s: openapi.yaml has %q, %s has %q", what, code, documented[code], codesFile, meaning)
		}
		delete(documented, code)
	}
	for code := range documented {
		t.Errorf("%s %s: openapi.yaml has it, the program does not", what, code)
	}
}

// TestFindingCodes: every code of findings that the checks use is in kindsOfFindings. Findings of any other code would
// be lost.
func TestFindingCodes(t *testing.T) {
	t.Parallel()
	set, files := sources(t)
	info := &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{},
		Defs:  map[*ast.Ident]types.Object{},
	}
	pkg := typeCheck(t, slices.Collect(maps.Values(files)), info)

	known := severities()
	seen := map[string]bool{}
	look := func(expression ast.Expr) {
		value := info.Types[expression].Value
		if value == nil || value.Kind() != constant.String {
			return // a variable: it gets its value elsewhere
		}
		code := constant.StringVal(value)
		seen[code] = true
		if known[code] == "" {
			t.Errorf("%s: kindsOfFindings lacks %q", set.Position(expression.Pos()), code)
		}
	}

	for name, file := range files {
		if !strings.HasPrefix(name, "dataset_checks") && !strings.HasPrefix(name, "dataset_expectation") {
			continue
		}
		ast.Inspect(file, func(node ast.Node) bool {
			switch node := node.(type) {
			case *ast.CallExpr:
				method, ok := node.Fun.(*ast.SelectorExpr)
				if ok && (method.Sel.Name == "found" || method.Sel.Name == "foundIn") {
					look(node.Args[0])
				}
			case *ast.AssignStmt:
				for i, to := range node.Lhs {
					if name, ok := to.(*ast.Ident); ok && name.Name == "code" && len(node.Rhs) == len(node.Lhs) {
						look(node.Rhs[i])
					}
				}
			case *ast.CompositeLit:
				of, ok := info.Types[node].Type.Underlying().(*types.Struct)
				isPositional := ok && len(node.Elts) == of.NumFields() && of.NumFields() > 0 && of.Field(0).Name() == "code"
				if isPositional {
					look(node.Elts[0])
				}
			}
			return true
		})
	}
	for name, object := range info.Defs {
		code, isConst := object.(*types.Const)
		if isConst && code.Parent() == pkg.Scope() && strings.HasPrefix(name.Name, "finding") {
			seen[constant.StringVal(code.Val())] = true
			if known[constant.StringVal(code.Val())] == "" {
				t.Errorf("%s: kindsOfFindings lacks %s", set.Position(name.Pos()), name.Name)
			}
		}
	}
	for code := range known {
		if !seen[code] {
			t.Errorf("kindsOfFindings has %s, which no check finds", code)
		}
	}
}
