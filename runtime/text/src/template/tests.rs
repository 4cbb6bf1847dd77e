//! The template environment against what Jinja2 with the settings of chat templates writes.

use super::*;
use serde_json::{Value as Json, json};
use std::cell::Cell;

fn render(source: &str, variables: Json) -> Result<String, TemplateError> {
    let Json::Object(map) = variables else { panic!("variables are an object") };
    ChatTemplate::new(source, Map::new())?.render(map)
}

fn text(source: &str) -> String {
    let value = json!({
        "v": {"b": 1, "a": [1.0, 2.5, 1e-5, 1e16, 123456789012345680000.0, -0.0, true, null, "é<&>'\"\\\n\u{1}\u{7f}😀"], "e": [], "o": {}},
        "s": " Some text. ",
    });
    render(source, value).unwrap()
}

/// Each output as Jinja2 3.1.6 with the settings and `tojson` of chat templates writes it.
#[test]
fn tojson_is_pythons_json_dumps() {
    let list = r#"[1.0, 2.5, 1e-05, 1e+16, 1.2345678901234568e+20, -0.0, true, null, "é<&>'\"\\\n\u0001"#;
    let plain = format!(r#"{{"b": 1, "a": {list}{}😀"], "e": [], "o": {{}}}}"#, '\u{7f}');
    assert_eq!(text("{{ v | tojson }}"), plain);
    assert_eq!(text("{{ v | tojson(separators=(',', ':')) }}"), plain.replace(", ", ",").replace(": ", ":"));
    assert_eq!(text("{{ v.a[8] | tojson(ensure_ascii=true) }}"), r#""\u00e9<&>'\"\\\n\u0001\u007f\ud83d\ude00""#);
    assert_eq!(
        text("{{ {'b': [1, {}], 'a': {'c': []}} | tojson(indent=2, sort_keys=true) }}"),
        "{\n  \"a\": {\n    \"c\": []\n  },\n  \"b\": [\n    1,\n    {}\n  ]\n}"
    );
    assert_eq!(text("{{ [1] | tojson(indent='\t') }}"), "[\n\t1\n]");
    assert_eq!(text("{{ {1: 2, none: 3, false: 4} | tojson }}"), r#"{"1": 2, "null": 3, "false": 4}"#);
}

#[test]
fn tojson_refuses_what_python_refuses() {
    for source in ["{{ nothing | tojson }}", "{{ v | tojson(separators=(',',)) }}", "{{ v | tojson(colour=1) }}"] {
        assert!(render(source, json!({"v": 1})).is_err(), "{source}");
    }
}

#[test]
fn values_print_as_in_python() {
    assert_eq!(text("{{ true }} {{ none }} {{ 1.0 }} {{ [1, 'a'] }} {{ missing }}|"), "True None 1.0 [1, 'a'] |");
    assert_eq!(text("{{ 'a' ~ 1 ~ none ~ true }}"), "a1NoneTrue");
}

#[test]
fn blocks_are_trimmed_as_chat_templates_expect() {
    assert_eq!(text("a\n  {% if true %}\n  b\n  {% endif %}\nc\n"), "a\n  b\nc");
    assert_eq!(text("a\n  {%- if true -%}\n  b\n  {%- endif %}\n"), "ab");
    assert_eq!(text("{# note #}\nx"), "x");
}

#[test]
fn pythons_methods_and_loop_controls_work() {
    assert_eq!(text("{{ s.strip().upper() }}|{{ s.split()[0] }}|{{ s.startswith(' So') }}"), "SOME TEXT.|Some|True");
    assert_eq!(text("{% for k, v in v.items() %}{{ k }};{% endfor %}{{ v.get('x', 5) }}"), "b;a;e;o;5");
    assert_eq!(text("{% for k, v in v | items %}{% if k == 'e' %}{% break %}{% endif %}{{ k }}{% endfor %}"), "ba");
    assert_eq!(text("{% for i in range(4) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}"), "023");
    assert_eq!(
        text("{% set n = namespace(x=0) %}{% for i in range(4) %}{% set n.x = n.x + i %}{% endfor %}{{ n.x }}"),
        "6"
    );
    assert_eq!(text("{{ dict(a=1).a }}{{ s[1:5] }}{{ [1, 2, 3][::-1] | join('') }}"), "1Some321");
}

#[test]
fn generation_blocks_change_nothing() {
    assert_eq!(text("a{%- generation -%} b {%- endgeneration %}c{% generation %}\nd{% endgeneration %}"), "abcd");
    assert_eq!(without_generation_blocks("x {% set a = 1 %} {% gen"), "x {% set a = 1 %} {% gen");
}

#[test]
fn the_year_is_a_number() {
    assert!(text("{{ strftime_now('%Y') }}").parse::<u32>().is_ok());
    assert!(render("{{ strftime_now('%!') }}", json!({})).is_err());
}

#[test]
fn errors_name_the_line() {
    let error = |source: &str| render(source, json!({"m": [1]})).unwrap_err();
    let raised = error("\n\n{{ raise_exception('roles must alternate') }}");
    assert_eq!(raised.to_string(), "chat template, line 3: roles must alternate");
    assert_eq!(error("a\n{% for %}").line, Some(2));
    assert_eq!(error("{{ m.x.y }}").line, Some(1));
    assert_eq!(error("\n{{ m.nosuch() }}").line, Some(2));
    assert!(error("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}").line.is_some());
}

#[test]
fn special_tokens_are_variables_that_a_request_may_replace() {
    let special = Map::from_iter([("bos_token".to_owned(), json!("<s>"))]);
    let template = ChatTemplate::new("{{ bos_token }}{{ x }}", special).unwrap();
    assert_eq!(template.render(Map::from_iter([("x".to_owned(), json!(1))])).unwrap(), "<s>1");
    assert_eq!(template.render(Map::from_iter([("bos_token".to_owned(), json!("b"))])).unwrap(), "b");
}

#[test]
fn a_prompt_costs_no_more_than_is_allowed() {
    let template = ChatTemplate::new("{% for m in messages %}{{ m }}{% endfor %}", Map::new()).unwrap();
    let written = Cell::new(0);
    let ask = |messages: usize, steps: u64, bytes: usize, patience: usize| {
        written.set(0);
        let is_gone = || written.replace(written.get() + 1) >= patience;
        let variables = Map::from_iter([("messages".to_owned(), json!(vec!["abc"; messages]))]);
        template.render_within(variables, &Allowance { steps, bytes, is_gone: &is_gone })
    };
    assert_eq!(ask(3, 1000, 9, usize::MAX).as_deref(), Ok("abcabcabc"));
    assert_eq!(ask(3, 1000, 8, usize::MAX), Err(NoPrompt::Bytes(8)));
    assert_eq!(ask(1000, 1000, usize::MAX, usize::MAX), Err(NoPrompt::Steps(1000)));
    // Whoever goes is noticed with the next piece.
    assert_eq!(ask(1000, 1_000_000, usize::MAX, 5), Err(NoPrompt::Gone));
    assert_eq!(written.get(), 6);
    let broken = ChatTemplate::new("\n{{ messages.x.y }}", Map::new()).unwrap();
    let allowance = Allowance { steps: 1000, bytes: 10, is_gone: &|| false };
    let error = broken.render_within(Map::from_iter([("messages".to_owned(), json!([]))]), &allowance).unwrap_err();
    assert!(matches!(&error, NoPrompt::Template(error) if error.line == Some(2)), "{error}");
}
