-- set_limit: a limit that overrides every client's own, until it is taken away.
--
-- KEYS     as in the head
-- ARGV     most    the limit, '' for none
--          number  of this call, which acts once at most
-- RETURNS  {tag, next_ms, waiting, mine}

local most, number = ARGV[5], tonumber(ARGV[6])

survey()
if not acted(number) then
  if most == '' then
    call('DEL', limit)
  else
    call('SET', limit, most)
  end
  cap = tonumber(most)
  note_call(number)
  if waiting > 0 then
    -- What was too heavy for the old limit may fit now.
    call('HSET', meta, 'aside', 0)
    look_again = 0
  end
end
purge()
freed = cap and math.max(0, cap - used) or math.huge
serve()
return standing()
