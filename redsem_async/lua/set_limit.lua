-- set_limit: a limit that overrides every client's own, until it is taken away.
--
-- KEYS     as in the head
-- ARGV     new_limit  the limit, '' for none
--          number     of this call, which acts once at most
-- RETURNS  {tag, next_ms, waiting, own_grants}

local new_limit, number = ARGV[5], tonumber(ARGV[6])

load_state()
if not already_ran(number) then
  if new_limit == '' then
    call('DEL', limit)
  else
    call('SET', limit, new_limit)
  end
  set_limit = tonumber(new_limit)
  note_call(number)
  if waiting > 0 then
    -- What was too heavy for the old limit may fit now.
    call('HSET', meta, 'aside', 0)
    aside_due = 0
  end
end
purge()
freed = set_limit and math.max(0, set_limit - used) or math.huge
serve()
return reply_head()
