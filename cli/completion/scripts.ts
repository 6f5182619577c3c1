/** The shells with a script. */
export const shells = ['bash', 'zsh', 'fish', 'powershell'] as const
export type Shell = (typeof shells)[number]

/**
 * The script that makes a shell ask `tidings complete -- WORD…`, the words up to the cursor, the last one perhaps
 * empty. Each line of the answer is a candidate, a tab and its description; the single line `:files` means that the
 * shell completes a path.
 */
export const completionScript = (shell: Shell): string => SCRIPTS[shell]

const SCRIPTS: Record<Shell, string> = {
  bash: `# tidings: completion for bash
_tidings() {
  local value text line i width=0
  local -a values=() texts=()
  COMPREPLY=()
  while IFS=$'\\t' read -r value text; do
    if [[ $value == :files ]]; then
      compopt -o default
      return
    fi
    values+=("$value")
    texts+=("\${text:+($text)}")
    (( \${#value} > width )) && width=\${#value}
  done < <("\${COMP_WORDS[0]}" complete -- "\${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
  if [[ $COMP_TYPE == 63 && \${#values[@]} -gt 1 ]]; then
    # A listing, which inserts nothing, can say what each is.
    for i in "\${!values[@]}"; do
      printf -v line '%-*s  %s' "$width" "\${values[i]}" "\${texts[i]}"
      COMPREPLY+=("$line")
    done
  else
    COMPREPLY=("\${values[@]}")
  fi
  [[ \${#values[@]} == 1 && \${values[0]} == *[=,] ]] && compopt -o nospace
}
# Old ones, such as the bash of macOS, know no nosort.
complete -o nosort -F _tidings tidings 2>/dev/null || complete -F _tidings tidings
`,
  zsh: `#compdef tidings
# tidings: completion for zsh
_tidings() {
  local line value text
  local -a candidates
  for line in "\${(@f)$("\${words[1]}" complete -- "\${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
    [[ -z $line ]] && continue
    if [[ $line == :files ]]; then
      _files
      return
    fi
    value=\${line%%$'\\t'*}
    text=\${line#*$'\\t'}
    candidates+=("\${value//:/\\\\:}\${text:+:$text}")
  done
  _describe -V tidings candidates
}
if [[ $funcstack[1] == _tidings ]]; then
  _tidings "$@"
else
  compdef _tidings tidings
fi
`,
  fish: `# tidings: completion for fish
function __tidings_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l lines ($words[1] complete -- $words[2..-1] "$current" 2>/dev/null)
    if test "$lines" = :files
        __fish_complete_path "$current"
    else
        printf '%s\\n' $lines
    end
end
complete -c tidings -f -k -a '(__tidings_complete)'
`,
  // Windows PowerShell drops empty arguments when it starts a program; --empty stands for one.
  powershell: `# tidings: completion for PowerShell
Register-ArgumentCompleter -Native -CommandName tidings -ScriptBlock {
  param($wordToComplete, $commandAst, $cursorPosition)
  $words = @($commandAst.CommandElements | Select-Object -Skip 1 |
    Where-Object { $_.Extent.StartOffset -lt $cursorPosition } | ForEach-Object { $_.ToString().Trim('"', "'") })
  $empty = if ($wordToComplete -eq '') { @('--empty') } else { @() }
  & tidings complete @empty -- @words 2>$null | ForEach-Object {
    $value, $text = $_ -split "\`t", 2
    if ($value -ne ':files') {
      if (-not $text) { $text = $value }
      [System.Management.Automation.CompletionResult]::new($value, $value, 'ParameterValue', $text)
    }
  }
}
`,
}
